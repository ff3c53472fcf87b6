// Shows text that grows: line breaks and fenced code, and nothing else. Text enters the page as text, never as HTML.

const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})/;

/** Cuts text into blocks, {isCode, text}. A fence that is not closed yet holds all that follows. */
export function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (isCode) => {
    // Line breaks beside a code block are no empty lines.
    const block = isCode ? lines.join("\n") : lines.join("\n").replace(/^\n+|\n+$/g, "");
    if (isCode || block) blocks.push({ isCode, text: block });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line)?.[1];
    if (fence === null && mark) {
      close(false);
      fence = mark;
    } else if (fence !== null && mark?.[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) {
      close(true);
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close(fence !== null);
  return blocks;
}

/** An element's content as blocks; what has not changed is left alone. */
export class TextView {
  #element;
  #shown = [];

  constructor(element) {
    this.#element = element;
  }

  set(text) {
    const blocks = blocksOf(text);
    blocks.forEach((block, index) => this.#put(block, index));
    while (this.#shown.length > blocks.length) this.#shown.pop().element.remove();
  }

  #put(block, index) {
    let shown = this.#shown[index];
    if (shown && shown.isCode !== block.isCode) {
      while (this.#shown.length > index) this.#shown.pop().element.remove();
      shown = undefined;
    }
    if (!shown) {
      const element = document.createElement(block.isCode ? "pre" : "p");
      const node = document.createTextNode("");
      element.append(node);
      if (block.isCode) element.tabIndex = 0;
      this.#element.append(element);
      shown = this.#shown[index] = { isCode: block.isCode, element, node };
    }
    const old = shown.node.data;
    if (block.text === old) return;
    if (block.text.startsWith(old)) shown.node.appendData(block.text.slice(old.length));
    else shown.node.data = block.text;
  }
}
