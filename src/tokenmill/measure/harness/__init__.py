"""lm-evaluation-harness over an engine: its tasks are scored with many requests in flight (extra: [eval]).

`model.py` is the adapter, registered as "tokenmill"; `tasks.py` finds tasks and evaluates them; `python -m
tokenmill.measure.harness` is the harness' own command line with that model. Importing these modules needs lm_eval.
"""
