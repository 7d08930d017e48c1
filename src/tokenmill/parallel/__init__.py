"""Tensor parallelism: several processes, called ranks, that share the rows of a model's matrices and the heads of its
cache.
"""
