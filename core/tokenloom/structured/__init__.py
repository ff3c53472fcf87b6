"""Structured output: from what the text must match to a logits constraint, by the library llguidance."""

from tokenloom.grammar_spec import GrammarSpec
from tokenloom.structured.compile_trial import CompileTrial
from tokenloom.structured.compiler import GrammarCompiler, compile_grammar

__all__ = ["CompileTrial", "GrammarCompiler", "GrammarSpec", "compile_grammar"]
