// Source of every number on the page. The build selects one: answers_http.ts for `tessera dashboard`,
// answers_wasm.ts for the static site (vite.config.js, alias "#answers").
export interface Answer {
  status: number; // as of HTTP
  text: string; // JSON
}
export interface Progress {
  done: number;
  total: number;
}
export interface Answers {
  live: boolean; // whether it can watch and start real runs
  docs?: string; // address of the documentation, if it is part of the site
  unreachable: string; // message for a request without an answer
  // Rejects if there is no answer. `path` is relative: "api/plan".
  ask(
    method: "GET" | "POST",
    path: string,
    body?: string,
    onProgress?: (progress: Progress) => void,
  ): Promise<Answer>;
}
