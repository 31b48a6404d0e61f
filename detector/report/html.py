"""The frame of an HTML page that is one file: no network, no script, no second file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #5c5c5c; --line: #d4d4d4; --ground: #ffffff; --panel: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececec; --soft: #a8a8a8; --line: #444444; --ground: #161616; --panel: #222222; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1280px; color: var(--ink); background: var(--ground);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 19px; margin: 32px 0 8px; } h3 { font-size: 16px; margin: 0 0 8px; }
p, ol { margin: 0 0 8px; } ol { padding-left: 28px; } small, .soft { color: var(--soft); }
.counts, .grid-of { display: grid; gap: 12px; }
.counts { grid-template-columns: repeat(3, 1fr); max-width: 480px; margin: 16px 0; }
.counts div, .panel { background: var(--panel); border-radius: 6px; padding: 12px; }
.counts b { display: block; font-size: 26px; line-height: 1.1; }
.grid-of { grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); align-items: start; }
.panel { margin-bottom: 12px; } .grid-of .panel { margin: 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: 3px 12px 3px 0; text-align: right; white-space: nowrap; } th:first-child { text-align: left; }
thead th { border-bottom: 1px solid var(--line); font-weight: 600; }
.pictures { display: flex; flex-wrap: wrap; gap: 10px; margin: 8px 0; }
figure { margin: 0; width: min(300px, 100%); } figure.pair { width: min(610px, 100%); }
figure img { width: 100%; display: block; border-radius: 4px; }
figcaption { font-size: 12px; color: var(--soft); }
.missing { border: 1px dashed var(--line); border-radius: 4px; padding: 24px 12px; font-size: 13px; }
summary { cursor: pointer; padding: 4px 0; }
"""
# Even if something unescaped slipped through, the browser would neither run nor fetch it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str, style: str = "") -> bytes:
    """The whole file. A file name that is no valid UTF-8 comes as surrogates, which cannot be written: they become escapes.

    Args:
        title: plain text · body: HTML · style: rules after STYLE.
    """
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<style>{STYLE}{style}</style></head>\n<body>{body}</body></html>\n"
    )
    return text.encode("utf-8", "backslashreplace")


def picture(content: bytes, alt: str, kind: str = "jpeg") -> str:
    """An image within the page; alt: plain text for those who cannot see it."""
    return f'<img alt="{escape(alt)}" src="data:image/{kind};base64,{base64.b64encode(content).decode()}">'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Plain texts as a table that scrolls sideways where it is too wide; kind: a class of the style sheet."""
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    name = f' class="{kind}"' if kind else ""
    return f'<div class="wide"><table{name}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'
