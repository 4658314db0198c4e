// Requests with the key of this tab, and the stream of events.

import { $, put } from "./elements.js";

export class Refused extends Error {} // message: the error text of the service

export const asking = () => !$("key-form").hidden;

export async function ask(where, options = {}) {
  const key = sessionStorage.getItem("navia-key");
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch(where, { ...options, headers, cache: "no-store" });
  if (reply.ok) return reply;
  if (reply.status === 401 && !asking()) {
    put("key-title", key ? "This key was not accepted" : "This service asks for a key");
    $("key-form").hidden = false;
    $("key").focus();
  }
  const problem = await reply.json().catch(() => ({}));
  throw new Refused(problem.error ?? `The service replied with status ${reply.status}.`);
}

/** Server-sent events, read by hand because EventSource cannot send a key. Yields { event, data }. */
export async function* readEvents(body) {
  const [reader, decoder] = [body.getReader(), new TextDecoder()];
  let text = "", event = "message", data = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const lines = text.split(/\r\n|\n|\r(?!$)/); // a CR at the end may be half of a CRLF
    text = lines.pop();
    for (const line of lines) {
      const [, field, content] = line.match(/^([^:]*):? ?(.*)$/s); // a comment has an empty field
      if (field === "event") event = content;
      if (field === "data") data.push(content);
      if (line !== "") continue;
      if (data.length) yield { event, data: data.join("\n") };
      [event, data] = ["message", []];
    }
  }
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("navia-key", $("key").value);
  $("key-form").reset();
  $("key-form").hidden = true;
});
