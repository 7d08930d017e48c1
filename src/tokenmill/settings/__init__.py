"""EngineConfig for what is built once, SamplingParams for what each prompt may choose.

A setting is one field with its metadata (field.py), from which the checks, the command line, the server's bodies and
document, the page and the reading of a model's recommendations derive. Nothing here imports torch: `--help` and bad
options must answer at once.
"""
