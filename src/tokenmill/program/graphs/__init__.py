"""Program graphs, for GPUs: five to seven Triton kernels a layer for steps of one token a sequence, in CUDA graphs."""
