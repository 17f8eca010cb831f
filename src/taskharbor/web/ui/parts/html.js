/** Preact and htm in one import: `html` writes markup as tagged templates; texts in it are always text. */

import { Fragment, createElement, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/hooks.js";
export { Component, createContext, createPortal } from "../vendor/preact.js";
export { Fragment, createElement, render };
export const html = htm.bind(createElement);

import { Component } from "../vendor/preact.js";

/** A component that renders again only when one of its properties is another value. */
export function memo(Inner) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const before = this.props;
      for (const name in next) if (next[name] !== before[name]) return true;
      for (const name in before) if (!(name in next)) return true;
      return false;
    }
    render(props) { return createElement(Inner, props); }
  };
}
