"""The KV cache: how a row is stored (formats), how much memory that is (spec), the tensors (pool), and one step's view
of them (step). Placement, which slot a token has, is the scheduler's; reading is the kernels'.
"""
