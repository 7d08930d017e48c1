"""What the layers of a model see of a text, and how its matrices are rounded by that.

The model is computed layer by layer in float32 over all calibration texts at once, with one layer in memory at a time.
When a matrix is reached, the products of its inputs are summed up, the matrix is rounded by them, and the computation
goes on with the rounded matrix, so that what follows is rounded for the inputs that it will have. The arithmetic of the
rounding itself is in quant/.
"""
