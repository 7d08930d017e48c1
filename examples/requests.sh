#!/bin/sh
# Every kind of request with curl. OPENAI_BASE_URL and OPENAI_API_KEY say where and who.
set -eu
url=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
ask() { curl --fail-with-body --silent --show-error -H "Authorization: Bearer ${OPENAI_API_KEY:-none}" "$@"; echo; }
post() { path=$1 && shift && ask "$url/$path" -H 'Content-Type: application/json' -d "$@"; }

ask "$url/models"
post completions '{"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}'
post chat/completions '{"messages": [{"role": "user", "content": "How do plants make food?"}], "max_tokens": 20}'

# -N shows the events of a stream as they come.
post completions '{"prompt": "Once upon a time", "max_tokens": 20, "stream": true}' -N

# A text that is kept, for a later request or the next start.
post sessions/tale/save '{"prompt": "Once upon a time there was"}'
ask -X POST "$url/sessions/tale/restore"
post completions '{"prompt": "Once upon a time there was", "max_tokens": 5}'
ask -X POST "$url/sessions/tale/erase"

ask "${url%/v1}/metrics" | grep -E 'generation_tokens_total|num_requests_running'
