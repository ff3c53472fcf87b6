"""How the questions begin that the target writes itself: kinds of tasks and the topics that go into them.

A seed is the first words of a user's turn; the target goes on from there. A document seed asks for a text that a later
task is about.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import final

__all__ = ["DOCUMENT_TASKS", "document_requests", "question_seeds"]

_TOPIC_TEXT = """
    a lighthouse keeper; bees and honey; the city of Lisbon; online banking; a school orchestra; the human heart;
    volcanoes; a broken bicycle; the Roman senate; solar panels; learning to swim; a family dinner; the price of bread;
    fossils; a chess tournament; renting a flat; coral reefs; the printing press; a night train; pottery; vaccines;
    the French language; a job interview; desert animals; the moon; a garden in spring; football; a hospital shift;
    electric cars; folk music; a lost dog; the stock market; a mountain hike; glass making; parents and teenagers;
    an old library; climate; the Silk Road; space telescopes; a cooking class; earthquakes; a small bakery;
    road safety; democracy; jazz; a farm in winter; sleep; a fishing village; robots; the ocean floor; a wedding;
    public transport; medieval castles; photosynthesis; a football club; credit cards; a detective; wolves;
    the history of mathematics; tea; a science fair; wind energy; a refugee camp; painting; gravity; a birthday party;
    recycling; ancient Egypt; a museum visit; antibiotics; a marathon; the internet; a strike at a factory; rivers;
    computer games; the water cycle; a young violinist; taxes; insects; a court case; the Renaissance; coffee;
    a submarine; friendship; sugar and health; a film festival; bridges; a new neighbour; genetics; a rainy holiday;
    the electron; a charity run; trade between countries; kites; memory; an election; a spaceship crew; cheese;
    the Industrial Revolution; a police report; yoga; penguins; a hotel; probability; a letter from the past; forests;
    batteries; a dragon; women in science; a flood; social media; a market in Morocco; the immune system; a magician;
    small companies; a thunderstorm; poetry; black holes; a school bus; healthy food; Japanese gardens; a pirate
"""
_TOPICS = tuple(topic.strip() for topic in _TOPIC_TEXT.split(";"))

_QUESTIONS: dict[str, tuple[str, ...]] = {
    "writing": (
        "Write a short story about {topic}",
        "Write an email about {topic} to",
        "Compose a poem about {topic}",
        "Write a blog post about {topic}. It should",
        "Draft a speech on {topic}",
        "Write a product description for",
        "Rewrite the following paragraph about {topic} in a formal tone:",
    ),
    "roleplay": (
        "You are an expert on {topic}. A visitor asks you",
        "Imagine that you are",
        "Pretend to be a teacher who explains {topic} to",
        "Act as a travel guide. I",
        "Play the role of",
    ),
    "reasoning": (
        "If all",
        "Three friends talk about {topic}.",
        "Which word does not belong with the others:",
        "A man is looking at",
        "Is it possible that",
        "Here is a riddle about {topic}:",
    ),
    "math": (
        "Solve for x:",
        "What is the area of",
        "Find the value of",
        "How many ways are there to",
        "What is the remainder when",
        "A box contains",
    ),
    "word_problem": (
        "Anna has",
        "A shop sells",
        "Tom earns",
        "A train travels",
        "There are 24",
        "Sara reads",
        "A recipe for {topic} needs",
        "Mr. Hill buys",
        "Every week, Ben",
    ),
    "coding": (
        "Write a Python function that",
        "Write a Python program to",
        "Implement a function in C++ that",
        "What does the following code do?\n\n```python\n",
        "Write an SQL query that",
        "Explain how to use",
        "Write a HTML page about {topic}",
    ),
    "extraction": (
        "Extract the names and dates from this text about {topic}:",
        "List the main points of the following review:",
        "Turn these facts about {topic} into a JSON object:",
        "Count how often each word occurs in:",
        "Classify each of these sentences as positive or negative:\n1.",
    ),
    "science": (
        "Explain how {topic}",
        "What is the difference between",
        "Describe the process of",
        "Why does",
        "What are the effects of",
        "How do scientists study {topic}",
    ),
    "humanities": (
        "Discuss the role of {topic} in",
        "What were the causes of",
        "Compare",
        "Explain the meaning of",
        "Make a lesson plan about {topic}",
        "What are the arguments for and against",
    ),
    "translation": (
        "Translate this German sentence into English: Die",
        "Translate this German sentence into English: Der",
        "Translate this German sentence into English: In",
        "Translate from German to English: Es",
        "Translate from German to English: Wir",
        "What does this German sentence mean in English? Das",
        "Translate into French: The",
    ),
    "trivia": (
        "Who was the first",
        "Who wrote",
        "When did",
        "When was the last time",
        "Where is",
        "Where does the",
        "What is the name of",
        "How many",
        "Who sang",
        "Who plays",
        "Which country",
        "What year",
    ),
    "conversation": (
        "Hi, I",
        "Can you help me with",
        "I want to learn about {topic}.",
        "Give me five ideas for",
        "Tell",
    ),
}

_DOCUMENTS: tuple[str, ...] = (
    "Write a long newspaper report about {topic}, with names, places and quotes.",
    "Write a detailed encyclopedia article about {topic}.",
    "Write a news story that happened last week and has to do with {topic}.",
    "Write several paragraphs on the history of {topic}.",
    "Write a magazine interview about {topic}.",
)

DOCUMENT_TASKS: tuple[str, ...] = (
    "Summarize this text:\n\n{document}",
    "Give a short summary of the following article.\n\n{document}",
    "{document}\n\nSummarize the text above in a few sentences.",
    "Read the passages and answer the question.\n\n{document}\n\nQuestion: {question}",
    "{document}\n\nUsing only this text, answer: {question}",
    "Use these facts to answer the question: {question}\n\n{document}",
    "What are the key points of this article?\n\n{document}",
)
"""What is asked about a document; {question} is one that the target wrote about its topic."""


@final
@dataclass(frozen=True, slots=True)
class _Deck:
    """Draws of all topics before one comes again."""

    rng: random.Random
    left: list[str]

    def draw(self) -> str:
        if not self.left:
            self.left.extend(self.rng.sample(_TOPICS, len(_TOPICS)))
        return self.left.pop()


def question_seeds(count: int, rng: random.Random) -> list[str]:
    """The first words of `count` questions, the kinds in equal shares."""
    deck, kinds = _Deck(rng, []), list(_QUESTIONS)
    return [rng.choice(_QUESTIONS[kinds[number % len(kinds)]]).format(topic=deck.draw()) for number in range(count)]


def document_requests(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Per document what the target is asked to write, and how a question about it begins."""
    deck, starts = _Deck(rng, []), ("What", "Who", "Why", "When", "How")
    topics = [deck.draw() for _ in range(count)]
    return [
        (rng.choice(_DOCUMENTS).format(topic=topic), f"About {topic}: {starts[number % len(starts)]}")
        for number, topic in enumerate(topics)
    ]
