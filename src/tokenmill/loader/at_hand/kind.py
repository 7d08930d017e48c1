"""Whether a model answers, or continues texts: what its chat template, or the lack of one, says."""

BASE, INSTRUCT = "base", "instruct"
