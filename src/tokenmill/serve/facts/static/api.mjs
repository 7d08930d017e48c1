// The server's interface: plain requests, and the events of a stream. What fails says in words for people why.

let key = "";
export const setKey = (given) => { key = given.trim(); };

export const GONE = "the server does not answer: it was stopped, or the network between is down";
const CUT = "the connection to the server broke before the answer had ended";

// status: of the response, 0 without one. code: the server's word for what is wrong.
export class ServerError extends Error {
  constructor(status, message, code) {
    super(message);
    Object.assign(this, { status, code });
  }
}

function headersOf(body) {
  try {
    return new Headers({ ...(key && { Authorization: `Bearer ${key}` }), ...(body && { "Content-Type": "application/json" }) });
  } catch {
    throw new ServerError(0, "the key has characters that no key can have", "invalid_api_key");
  }
}

// What fetch and the readers of a body throw is a TypeError if the network failed.
async function reach(action, otherwise) {
  try {
    return await action();
  } catch (error) {
    if (error.name === "TimeoutError") throw new ServerError(0, "the server takes long to answer");
    if (error instanceof TypeError) throw new ServerError(0, otherwise);
    throw error;
  }
}

export async function call(path, body, signal) {
  const more = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const headers = headersOf(more.body);
  const response = await reach(() => fetch(path, { headers, signal, cache: "no-store", ...more }), GONE);
  if (response.ok) return response;
  const said = (await response.json().catch(() => null))?.error;
  const proxy = `the server answers ${response.status} ${response.statusText}: ${response.status > 501 ? "it is gone, or what stands before it cannot reach it" : "it does not say why"}`;
  throw new ServerError(response.status, said?.message ?? proxy, said?.code);
}

const json = (response) => reach(() => response.json(), CUT).catch((error) => {
  throw error instanceof SyntaxError ? new ServerError(response.status, "what answers here is not tokenmill's server") : error;
});

export const ask = async (path, body, seconds = 10) => json(await call(path, body, AbortSignal.timeout(1000 * seconds)));

// The objects of a stream of server-sent events, until its end. A stream that breaks off before throws.
export async function* events(path, body, signal) {
  const response = await call(path, body, signal);
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) throw new ServerError(response.status, "what answers here sends no stream of events");
  for await (const data of dataOf(response.body.pipeThrough(new TextDecoderStream()).getReader())) {
    if (data === "[DONE]") return;
    const event = parse(data);
    if (event.error) throw new ServerError(0, event.error.message ?? "the server ends the answer with an error", event.error.code);
    yield event;
  }
  throw new ServerError(0, CUT);
}

function parse(data) {
  try {
    return Object(JSON.parse(data));
  } catch {
    throw new ServerError(0, "the server sent an event that is no JSON");
  }
}

// The data of each event. Lines may end in any of three ways, and comments keep the connection open.
async function* dataOf(reader) {
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reach(() => reader.read(), CUT);
      if (done) return;
      const parts = (rest + value).split(/\r\n\r\n|\n\n|\r\r/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r\n|\n|\r/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // of whoever stops reading
  }
}
