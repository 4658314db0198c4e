// Formatting of numbers and times.

export const MISSING = "–";

export function number(value) {
  if (value === null || value === undefined) return MISSING;
  const size = Math.abs(value);
  if (size > 0 && size < 0.1) return value.toLocaleString("en", { maximumSignificantDigits: 2 });
  const digits = size === 0 || size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export const count = (value) => (value < 1e6 ? value.toLocaleString("en") : `${number(value / 1e6)} M`);
export const plural = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;

export function percent(share) {
  if (share > 0 && share < 0.01) return "< 1 %";
  return share < 1 && share > 0.99 ? "> 99 %" : `${Math.round(100 * share)} %`;
}

export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export const ago = (seconds) => (seconds < 1 ? "just now" : `${duration(seconds).split(" ").slice(0, 2).join(" ")} ago`);
export const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB");
export const day = (time) => new Date(1000 * time).toLocaleString("en-GB");
