"""Calibration: quantises the matrices of a model for the inputs that they have on calibration texts.

The model is computed layer by layer in float32 over all calibration texts at once, with one layer in memory at a time.
When a matrix is reached, Xᵀ X of its inputs is computed, the matrix is quantised with it, and the quantised matrix is
applied. So every matrix is quantised for the inputs that it has in the quantised model. The arithmetic of rounding is
in quant/.
"""
