"""What parts of a matrix that stays as it is stored are called, whatever a format calls them."""

KEPT_SCALE = ".weight_scale"
"""The part with the scales."""
KEPT_ZERO_POINT = ".weight_zero_point"
"""The part with the zero points of a matrix of four bits."""
