"""Program graphs, for GPUs: a few Triton kernels a layer for steps of one token a sequence, in CUDA graphs."""
