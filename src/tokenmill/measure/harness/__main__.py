"""lm-evaluation-harness' own command line with the model "tokenmill":

    python -m tokenmill.measure.harness run --model tokenmill --model_args pretrained=smollm2-135m --tasks TASK

Version 0.4.13 knows only the models that some module has registered by now. Later ones find the entry point that
tokenmill declares, so that `lm_eval run --model tokenmill` does the same.
"""

from lm_eval.__main__ import cli_evaluate

from tokenmill.measure.harness.model import TokenmillLM

__all__ = ["TokenmillLM"]

if __name__ == "__main__":
    cli_evaluate()
