// The server's interface: plain requests, and the events of a stream.

let key = "";
export const setKey = (given) => { key = given.trim(); };

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, options);
  if (!response.ok) {
    const said = await response.json().catch(() => null);
    throw new ServerError(response.status, said?.error?.message ?? `the server answers ${response.status}`);
  }
  return response;
}

export const ask = async (path, body) => (await call(path, body, AbortSignal.timeout(10_000))).json();

// The objects of a stream of server-sent events, until its end.
export async function* events(path, body, signal) {
  const response = await call(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ServerError(0, "the connection ended before the answer did");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue; // a comment that keeps the connection open
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new ServerError(event.error.code ?? 0, event.error.message);
      yield event;
    }
  }
}
