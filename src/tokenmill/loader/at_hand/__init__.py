"""The models that lie on this machine: facts from their headers, and the files kept for them. No torch."""

BASE, INSTRUCT = "base", "instruct"  # a model that continues texts, and one that answers, by its chat template
EMBEDDING = "embedding"  # a model that gives vectors of texts, and no text
