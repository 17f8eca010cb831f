/** Words of a search, as texts: the grammar itself is in the server, which says where it does not understand. */

export const FIELDS = [
  ["state:", "failed, retrying, ready, …"], ["queue:", "of a queue"], ["type:", "of a task; * matches"], ["error:", "part of the error"],
  ["args.", "looks into arguments"], ["ended:", "<1h, >7d"], ["age:", "since it was enqueued"], ["attempt:", ">2"], ["tag:", "header tags"],
  ["worker:", "who ran it"], ["failure:", "kind of failure"], ["key:", "its key"], ["wait:", ">5min"], ["run:", ">30s"],
  ["priority:", ">0"], ["lane:", "what it requires"], ["release:", "of the worker"], ["cause:", "of its failure"], ["id:", "of a job"],
];

/** [{ text, at }]: parts between spaces; quotes keep spaces inside. */
export function words(q) {
  const found = [];
  const pattern = /(?:[^\s"]|"(?:[^"\\]|\\.)*"?)+/g;
  for (const match of q.matchAll(pattern)) found.push({ text: match[0], at: match.index });
  return found;
}

export const join = (texts) => texts.filter(Boolean).join(" ");
export const fieldOf = (text) => /^-?([a-z]+)[:.]/.exec(text)?.[1] ?? "";

/** The query with other words for one field, or without. */
export function withField(q, field, text) {
  return join([...words(q).map((word) => word.text).filter((word) => fieldOf(word) !== field || word.startsWith("-")), text]);
}

/** The value of the only positive word of a field, or "". */
export function fieldValue(q, field) {
  const found = words(q).map((word) => word.text).filter((word) => word.startsWith(`${field}:`));
  return found.length === 1 ? found[0].slice(field.length + 1) : "";
}

/** Whether only queues and states are asked for: then the board knows the counts. */
export const isPlain = (q) => words(q).every((word) => /^(queue|state):[\w.,-]+$/.test(word.text));

/** Queues that the query names exactly; null means any. */
export function queuesOf(q) {
  const text = fieldValue(q, "queue");
  return text && !text.includes("*") ? new Set(text.split(",")) : null;
}

/** Whether a draft is one whole word: no open quote, not only a field. */
export const isWhole = (draft) => draft !== "" && (draft.split('"').length - 1) % 2 === 0 && !/[:.]$/.test(draft);

const quoted = (value) => (/[\s"]/.test(value) ? JSON.stringify(value) : value);

/** What could come next: [text, hint]. Only names that are known; no jobs are read.
 *
 * @param {{ queues: string[], types: string[], workers: string[], states: string[] }} known */
export function completions(draft, known) {
  const [, not, body] = /^(-?)(.*)$/s.exec(draft);
  const field = /^([a-z]+):/.exec(body)?.[1];
  if (!field) {
    const fields = FIELDS.filter(([name]) => name.startsWith(body) && name !== body);
    const types = body.length > 1 ? known.types.filter((name) => name.startsWith(body)).map((name) => [`type:${name}`, "task"]) : [];
    return [...fields, ...types].slice(0, 8).map(([name, hint]) => [not + name, hint]);
  }
  const values = { state: known.states, queue: known.queues, type: known.types, worker: known.workers }[field];
  if (!values) return [];
  const parts = body.slice(field.length + 1).split(","), last = parts.pop();
  const before = parts.length ? `${parts.join()},` : "";
  return values.filter((name) => name.includes(last) && name !== last && !parts.includes(name))
    .sort((a, b) => b.startsWith(last) - a.startsWith(last)).slice(0, 8).map((name) => [`${not}${field}:${before}${quoted(name)}`, ""]);
}
