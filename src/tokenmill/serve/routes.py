"""The table of routes, a line for each: application, document and the gate read it. Lines of routes that generate stand
in protocols.py.

A route is a function that gets a Call and returns a response or its JSON.
"""

from tokenmill.serve.facts import adapters, document, page, status, tokens
from tokenmill.serve.http.streams import JSON, LINES, TEXT
from tokenmill.serve.llama_cpp import facts as llama_cpp
from tokenmill.serve.messages.parse import CountBody, parse_messages
from tokenmill.serve.ollama import embed as ollama_embed
from tokenmill.serve.ollama import routes as ollama
from tokenmill.serve.openai import embeddings, rerank
from tokenmill.serve.protocols import GENERATING, MESSAGES, OLLAMA, Route
from tokenmill.serve.sessions import routes as kept

NAMED = (400, 404, 408)  # the refusals of a body that names a model
KEPT = (400, 404, 429, 503)  # the refusals of all routes of sessions

ROUTES = (
    *GENERATING,
    Route("POST", "/v1/messages/count_tokens", tokens.count_tokens, NAMED, CountBody, protocol=MESSAGES,
          parse=parse_messages),
    Route("POST", "/v1/embeddings", embeddings.embeddings, NAMED, embeddings.EmbeddingBody),
    *(Route("POST", path, rerank.reranked, NAMED, rerank.RerankBody) for path in ("/v1/rerank", "/rerank")),
    *(Route("POST", path, rerank.scored, NAMED, rerank.ScoreBody) for path in ("/v1/score", "/score")),
    Route("POST", "/api/embed", ollama_embed.embed, NAMED, ollama_embed.OllamaEmbedBody, protocol=OLLAMA),
    Route("POST", "/api/embeddings", ollama_embed.embeddings, NAMED, ollama_embed.OllamaEmbeddingsBody,
          protocol=OLLAMA),
    Route("GET", "/api/tags", ollama.tags, (400,), protocol=OLLAMA),
    Route("GET", "/api/ps", ollama.running, (400,), protocol=OLLAMA),
    Route("GET", "/api/version", ollama.version, (400,), protocol=OLLAMA),
    Route("POST", "/api/show", ollama.show, NAMED, ollama.OllamaModelBody, protocol=OLLAMA),
    Route("POST", "/api/pull", ollama.pull, NAMED, ollama.OllamaModelBody, protocol=OLLAMA,
          kinds=(JSON, LINES)),
    Route("POST", "/v1/load_lora_adapter", adapters.load, (*NAMED, 403, 409), adapters.LoadBody, kinds=(TEXT,)),
    Route("POST", "/v1/unload_lora_adapter", adapters.unload, (*NAMED, 403), adapters.UnloadBody, kinds=(TEXT,)),
    Route("POST", "/tokenize", tokens.tokenize, NAMED, tokens.TokenizeBody),
    Route("POST", "/detokenize", tokens.detokenize, NAMED, tokens.DetokenizeBody),
    Route("GET", "/tokenizer_info", tokens.tokenizer_info, (400,)),
    Route("POST", "/apply-template", llama_cpp.apply_template, NAMED, tokens.TokenizeBody),
    Route("GET", "/props", llama_cpp.props),
    Route("POST", "/v1/sessions/{name}/save", kept.save, (*KEPT, 408, 507), tokens.TokenizeBody),
    Route("POST", "/v1/sessions/{name}/restore", kept.restore, (*KEPT, 409)),
    Route("POST", "/v1/sessions/{name}/erase", kept.erase, (*KEPT, 409)),
    Route("POST", "/v1/files", kept.upload, (*NAMED, 507), form=kept.Upload),
    Route("GET", "/v1/files", kept.files, (400, 404), query=kept.FilesPage),
    Route("GET", "/v1/files/{name}", kept.file, (404,)),
    Route("GET", "/v1/files/{name}/content", kept.content, (404,), kinds=("application/jsonl",)),
    Route("DELETE", "/v1/files/{name}", kept.delete, (404, 409)),
    Route("POST", "/v1/batches", kept.create_batch, (*NAMED, 503, 507), kept.BatchBody),
    Route("GET", "/v1/batches", kept.batches, (400, 404), query=kept.Page),
    Route("GET", "/v1/batches/{name}", kept.batch, (404,)),
    Route("POST", "/v1/batches/{name}/cancel", kept.cancel, (404, 409, 507)),
    Route("GET", "/v1/models", status.models),
    Route("GET", "/v1/models/", status.models, is_hidden=True),
    Route("GET", "/v1/models/{name:path}", status.model, (404,)),
    Route("GET", "/health", status.health, (503,), is_open=True),
    Route("GET", "/ping", status.health, (503,), is_open=True, told=status.AS_HEALTH),
    Route("POST", "/ping", status.health, (503,), is_open=True, told=status.AS_HEALTH),
    Route("GET", "/ready", status.ready, (503,), is_open=True),
    Route("GET", "/load", status.load),
    Route("GET", "/server_info", status.server_info),
    Route("GET", "/metrics", status.metrics, kinds=(TEXT,)),
    Route("GET", "/version", status.version),
    Route("GET", "/v1/cache", page.cache, (503,)),
    Route("GET", "/", page.index, is_open=True, is_hidden=True),
    Route("GET", "/page/{name:path}", page.page_file, is_open=True, is_hidden=True),
    Route("GET", "/docs", document.reference, is_open=True, is_hidden=True),
    Route("GET", "/redoc", document.reference, is_open=True, is_hidden=True),
    Route("GET", "/openapi.json", document.openapi, is_hidden=True),
)  # fmt: skip


def routes_at(path: str) -> list[Route]:
    """Return the routes of a path, one for each method."""
    return [route for route in ROUTES if route.is_at(path)]
