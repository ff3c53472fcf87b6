"""Tool calls and thoughts in a model's reply: parsers for text that streams, and grammars that force a call.

choice = choose_tool_parser(settings.tool_parser, tokenizer.chat_template)    once, at start; print choice.reason
parser = ReplyParser(build_reasoning_parser(...), build_tool_parser(...))     one for each choice of a request
parser.push(text), ..., parser.finish()                                       deltas, for a stream
parse_reply(text, parser)                                                     a whole reply
tool_grammar(..., thoughts=thoughts_before(...))                              for tool_choice=required, or one tool
"""

from tokenloom.server.tools.formats import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    ParserChoice,
    build_reasoning_parser,
    build_tool_parser,
    choose_reasoning_parser,
    choose_tool_parser,
    marks_of,
    special_marks,
    thoughts_before,
)
from tokenloom.server.tools.interface import (
    ContentDelta,
    ReasoningDelta,
    ReasoningParser,
    ReplyDelta,
    ToolCallArguments,
    ToolCallStart,
    ToolDelta,
    ToolParser,
)
from tokenloom.server.tools.reply import Reply, ReplyParser, ToolCall, assemble, parse_reply
from tokenloom.server.tools.tool_grammar import OfferedTool, tool_grammar

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "ContentDelta",
    "OfferedTool",
    "ParserChoice",
    "ReasoningDelta",
    "ReasoningParser",
    "Reply",
    "ReplyDelta",
    "ReplyParser",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStart",
    "ToolDelta",
    "ToolParser",
    "assemble",
    "build_reasoning_parser",
    "build_tool_parser",
    "choose_reasoning_parser",
    "choose_tool_parser",
    "marks_of",
    "parse_reply",
    "special_marks",
    "thoughts_before",
    "tool_grammar",
]
