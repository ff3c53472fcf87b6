"""How good a model's answers are: perplexity, distance from a reference, multiple choice, retrieval, speed."""
