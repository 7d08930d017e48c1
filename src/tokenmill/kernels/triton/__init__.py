"""Kernels in Triton, for GPUs: the products and the attention of steps that feed one token to each sequence.

Triton compiles a kernel when it is first launched. With TRITON_INTERPRET=1 in the environment before the first import
it computes kernels by numpy instead, on a CPU and slowly: so tests run them on machines without a GPU.
"""
