// Requests to the server that this page came from, with the API key where one was given.

const STORED_KEY = "tokenloom.api_key";

/** An answer that is an error. `status` is 0 where there was no answer at all. */
export class ApiError extends Error {
  constructor(status, message, retryAfterS = null) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

export function hasKey() {
  return sessionStorage.getItem(STORED_KEY) !== null;
}

export function setKey(key) {
  sessionStorage.setItem(STORED_KEY, key);
}

/** Asks for a path, relative to the page; `body` makes it a POST. Throws ApiError; an abort passes as it is. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(STORED_KEY)}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = { headers, signal, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  const text = await response.text();
  const waitS = Number(response.headers.get("Retry-After") ?? NaN);
  return new ApiError(response.status, messageOf(text) ?? (text.slice(0, 500) || response.statusText),
    Number.isFinite(waitS) ? waitS : null);
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return null;
  }
}
