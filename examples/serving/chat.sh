#!/usr/bin/env bash
# Asks a server that runs (`tokenloom serve`): a chat, a stream, a score, a schema. Usage: chat.sh [URL]
set -euo pipefail
url="${1:-http://localhost:8000}"

post() {
  curl --fail-with-body --silent --show-error --no-buffer "$url$1" \
    --header "Content-Type: application/json" --header "Authorization: Bearer ${TOKENLOOM_API_KEY:-none}" --data "$2"
  echo
}

echo "# a chat"
post /v1/chat/completions '{
  "messages": [{"role": "user", "content": "Name three primary colours."}], "max_tokens": 24, "temperature": 0}'

echo "# a stream, with the usage at its end"
post /v1/completions '{
  "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0,
  "stream": true, "stream_options": {"include_usage": true}}'

echo "# how likely a text is, without generating any"
post /v1/completions '{"prompt": "Water boils at 100 degrees.", "max_tokens": 0, "echo": true, "logprobs": 1}'

echo "# text that a regular expression matches"
post /v1/completions '{"prompt": "A date: ", "regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}", "max_tokens": 24}'
