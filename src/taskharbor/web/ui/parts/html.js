/** Preact and htm in one import: `html` writes markup as tagged templates; texts in it are always text. */

import { createElement, render } from "../vendor/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

export { render, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };
export const html = htm.bind(createElement);

/** A function that draws the component again. */
export const useAgain = () => useReducer((count) => count + 1, 0)[1];

/** The component is drawn again when the functions of this set are called. It listens before the browser paints: nothing is missed. */
export function useSet(listeners) {
  const again = useAgain();
  useLayoutEffect(() => { listeners.add(again); return () => listeners.delete(again); }, [listeners]);
}

/** A component that is drawn again only when one of its properties is another value; it always has the same ones. */
export const memo = (draw) => (props) => useMemo(() => draw(props), Object.values(props));
