/** Preact and htm in one import: `html` writes markup as tagged templates; texts in it are always text. */

import { Component, createElement, render } from "../vendor/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

export { createElement, render, useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState };
export const html = htm.bind(createElement);

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
