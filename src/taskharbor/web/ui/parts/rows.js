/** Lists by keyboard: j and k move the focus over the links that carry `data-row`; Enter opens, as on any link. */

import { useKeys } from "../keys.js";

export function useRowKeys() {
  const move = (step) => {
    const rows = [...document.querySelectorAll("#main [data-row]")].filter((row) => row.checkVisibility());
    if (!rows.length) return false;
    const at = rows.indexOf(document.activeElement);
    rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)].focus();
    return true;
  };
  useKeys({ j: () => move(1), k: () => move(-1) });
}
