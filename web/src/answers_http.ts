// Answers of the server of `tessera dashboard`.
import type { Answers } from "./answers";

export const answers: Answers = {
  live: true,
  unreachable: "No response from the server. Is `tessera dashboard` still running?",
  async ask(method, path, body) {
    const response = await fetch(path, {
      method,
      ...(body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body }),
    });
    return { status: response.status, text: await response.text() };
  },
};
