"""The route of llama.cpp's own API by which editors have a text filled in: POST /infill."""
