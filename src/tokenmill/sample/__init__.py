"""LOGITS -> TOKEN: penalties, filters and the draw, each row by itself."""
