"""The embedding classes of langchain and llama-index, for OpenAI's API and for Ollama's: one text and several."""

import json
import math
import os
from urllib.request import Request, urlopen

from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

URL, TEXTS = os.environ["URL"], ["Hello", "The weather in Paris?", "as an object"]
BODY = json.dumps({"model": "words", "input": TEXTS}).encode()
with urlopen(Request(f"{URL}/v1/embeddings", BODY, {"Content-Type": "application/json"})) as answer:
    WANTED = [each["embedding"] for each in json.load(answer)["data"]]


def same(found, wanted=WANTED):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert len(one) == len(other) and max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-6
        assert math.isclose(math.hypot(*one), 1, rel_tol=1e-5)


way = {"model": "words", "base_url": f"{URL}/v1", "api_key": "none"}
chain = OpenAIEmbeddings(**way, check_embedding_ctx_length=False)  # else it sends ids of OpenAI's own vocabulary
same(chain.embed_documents(TEXTS))
same([chain.embed_query(TEXTS[1])], WANTED[1:2])
shorter = OpenAIEmbeddings(**way, check_embedding_ctx_length=False, dimensions=8).embed_query(TEXTS[0])
size = math.hypot(*WANTED[0][:8])
same([shorter], [[number / size for number in WANTED[0][:8]]])

ollama = OllamaEmbeddings(model="words", base_url=URL)
same(ollama.embed_documents(TEXTS))
same([ollama.embed_query(TEXTS[2])], WANTED[2:])

like = OpenAILikeEmbedding(model_name="words", api_base=f"{URL}/v1", api_key="none", embed_batch_size=2)
same(like.get_text_embedding_batch(TEXTS))
same([like.get_query_embedding(TEXTS[0])], WANTED[:1])

local = OllamaEmbedding(model_name="words", base_url=URL)
same(local.get_text_embedding_batch(TEXTS))
same([local.get_query_embedding(TEXTS[0])], WANTED[:1])
