// Code in colours: comments, strings, numbers and the words of the language. It knows no grammar, only how these begin
// and end, so a wrong guess costs a colour and never a character.

const words = (text) => new Set(text.split(" "));

const C_WORDS = words(
  "abstract as async await auto bool boolean break case catch char class const constexpr continue crate debugger default defer delete do double " +
  "else enum export extends extern false final finally float fn for foreach from func function go goto if impl implements import in inline instanceof " +
  "int interface internal is let long loop match mod mut namespace new nil null nullptr of operator override package private protected pub public " +
  "range readonly ref return self short signed sizeof static struct super switch template this throw throws trait true try type typedef typeof " +
  "undefined union unsafe unsigned use using val var virtual void volatile when where while with yield");
const PYTHON_WORDS = words(
  "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None " +
  "nonlocal not or pass raise return self True try while with yield");
const SHELL_WORDS = words("case do done elif else esac export fi for function if in local return set then unset until while");
const RUBY_WORDS = words("begin break case class def do else elsif end ensure false for if in module next nil not or redo require rescue return self super then true unless until when while yield and");
const SQL_WORDS = words(
  "add all alter and as asc between by case create cross default delete desc distinct drop else end exists false foreign from full group having if in " +
  "index inner insert into is join key left like limit not null offset on or order outer primary references right select set table then true union " +
  "unique update using values view when where with");
const LUA_WORDS = words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while");
const DATA_WORDS = words("true false null yes no on off");

const SLASHES = /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/, HASH = /(?<![\w$&{])#[^\n]*/, DASHES = /--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/, TAGS = /<!--[\s\S]*?(?:-->|$)/;
const QUOTES = /"(?:\\[\s\S]|[^"\\\n])*"?|'(?:\\[\s\S]|[^'\\\n])*'?/, BACKTICKS = /`(?:\\[\s\S]|[^`\\])*`?/, DOUBLE = /"(?:\\[\s\S]|[^"\\])*"?|'(?:\\.[^'\n]{0,8}|[^'\\\n])'/;
const TRIPLE = /[bBfFrRuU]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\[\s\S]|[^"\\\n])*"?|'(?:\\[\s\S]|[^'\\\n])*'?)/;

const either = (...kinds) => kinds.map((kind) => kind.source).join("|");
const language = (known, comment, string) => ({ known, pattern: new RegExp(`(?<comment>${comment.source})|(?<string>${string})|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_$][\\w$]*)`, "g") });

const C = language(C_WORDS, SLASHES, either(QUOTES, BACKTICKS));
const SYSTEMS = language(C_WORDS, SLASHES, either(DOUBLE)); // Rust and its kin, where 'a is no text that begins
const SHELL = language(SHELL_WORDS, HASH, either(QUOTES));
const DATA = language(DATA_WORDS, HASH, either(QUOTES));
const MARKUP = language(new Set(), TAGS, either(QUOTES));
const SQL = language(SQL_WORDS, DASHES, either(QUOTES));
const LANGUAGES = new Map(Object.entries({
  "c h cpp c++ cc hpp cuda cs csharp c# java javascript js jsx mjs typescript ts tsx go php dart css scss": C,
  "rust rs kotlin kt scala swift": SYSTEMS,
  "python py python3 pycon": language(PYTHON_WORDS, HASH, either(TRIPLE)),
  "sh bash shell zsh console dockerfile makefile make": SHELL,
  "ruby rb perl r julia": language(RUBY_WORDS, HASH, either(QUOTES)),
  "yaml yml toml ini json jsonc json5": DATA,
  "html xml svg vue": MARKUP,
  sql: SQL,
  "lua haskell hs": language(LUA_WORDS, /--[^\n]*/, either(QUOTES)),
}).flatMap(([names, found]) => names.split(" ").map((name) => [name, found])));
const LONGEST = 100_000; // characters; more stays in one colour

// A text as texts and coloured elements, which together are the text.
export function highlight(text, name) {
  const found = LANGUAGES.get(name), parts = [];
  if (!found || text.length > LONGEST) return [text];
  let end = 0;
  for (const { 0: piece, index, groups } of text.matchAll(found.pattern)) {
    const kind = Object.keys(groups).find((each) => groups[each] !== undefined);
    if (!piece || (kind === "word" && !found.known.has(found === SQL ? piece.toLowerCase() : piece))) continue;
    const part = document.createElement("span");
    part.className = `code-${kind}`;
    part.textContent = piece;
    parts.push(text.slice(end, index), part);
    end = index + piece.length;
  }
  return [...parts, text.slice(end)];
}
