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
    small companies; a thunderstorm; poetry; black holes; a school bus; healthy food; Japanese gardens; a pirate;
    a bank robbery; a transfer of a striker; a new phone; a missing child; a plane that had to turn back; a tennis
    final; an actor's divorce; a hospital that closes; a minister who resigns; a wildfire; a rescue at sea; a boxing
    match; rising rents; a stolen painting; a trial for fraud; a shark; a cyclist; a peace treaty; a lottery winner;
    an outbreak of measles; a school play; a police officer; a merger of two airlines; a new vaccine; a cathedral;
    opera; a television series; the Olympic Games; a king's coronation; baseball; the national anthem; a constitution;
    hip hop; the periodic table; a capital city; a hurricane; a comic book hero; a novel of the nineteenth century; a
    treaty
"""
_TOPICS = tuple(" ".join(topic.split()) for topic in _TOPIC_TEXT.split(";"))
_PLACE_TEXT = """
    Berlin; Texas; Manchester; Nairobi; Sydney; Mumbai; Toronto; a village in Wales; Tokyo; Naples; Chicago; Brazil;
    Cairo; Warsaw; California; a small town in Ohio; Seoul; Scotland; Florida; Istanbul; Paris; Lagos; Mexico
"""
_PLACES = tuple(place.strip() for place in _PLACE_TEXT.split(";"))

_QUESTIONS: dict[str, tuple[str, ...]] = {
    "writing": (
        "Write a short story about {topic}",
        "Write an email about {topic} to",
        "Compose a poem about {topic}",
        "Write a blog post about {topic}. It should",
        "Draft a speech on {topic}",
        "Write a product description for",
        "Write a diary entry of somebody in {place} who",
        "Write a persuasive letter about {topic} to",
        "Write the opening of a novel that is set in {place}",
    ),
    "rewriting": (
        "Rewrite the following paragraph about {topic} in a formal tone:",
        "Correct the grammar of this text:",
        "Make this email more polite:",
        "Explain this to a child of ten: {topic}",
        "Shorten the following text about {topic}:",
        "Say it in other words: The",
    ),
    "lists": (
        "List ten facts about {topic}",
        "Name the steps to",
        "Make a plan for three days in {place}",
        "Write a table with columns for",
        "What are the advantages and disadvantages of",
        "Write an outline of an essay about {topic}",
    ),
    "summary": (
        "Summarize: {place} -",
        "Summarize: The",
        "Summarize: A",
        "Summarize: (News) -",
        "Summarize: It was",
        "Summarize the following article: By",
        "TL;DR of this text: In {place},",
    ),
    "roleplay": (
        "You are an expert on {topic}. A visitor asks you",
        "Imagine that you are",
        "Pretend to be a teacher who explains {topic} to",
        "Act as a travel guide. I",
        "Play the role of",
        "You are a doctor in {place}. A patient",
        "You are a famous painter from {place} and",
        "Suppose that you are {topic}. Describe",
    ),
    "reasoning": (
        "If all",
        "Three friends talk about {topic}.",
        "Which of these does not fit:",
        "A man is looking at",
        "Is it possible that",
        "Here is a riddle about {topic}:",
        "Peter is older than",
        "The owner of a house in {place} says that",
        "Read the following statements and say which one is",
    ),
    "math": (
        "Solve for x:",
        "What is the area of",
        "Find the value of",
        "How many ways are there to",
        "What is the remainder when",
        "A box contains",
        "Prove that",
        "A circle has",
        "Simplify the expression",
        "What is the probability that",
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
        "Step by step: If a worker",
        "James buys",
        "A farmer in {place} has",
        "John is twice as old as",
        "The price of a ticket",
        "In a class of",
        "Maria bakes",
        "It takes Lisa",
    ),
    "coding": (
        "Write a Python function that",
        "Write a Python program to",
        "Implement a function in C++ that",
        "What does the following code do?\n\n```python\n",
        "Write an SQL query that",
        "Explain how to use",
        "Write a HTML page about {topic}",
        "Find the error in this program:\n\n```python\ndef",
        "Write a program that reads",
        "Given an array of integers,",
        "Write a regular expression that",
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
        "Translate this German sentence into English: {german}",
        "Translate German into English: {german}",
        "Translate from German to English: {german}",
        "What does this German sentence mean in English? {german}",
        "Translate into French: The",
        "Translate into German: The",
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
        "who plays",
        "when did the",
        "where was",
        "what is the",
        "who won the",
        "how many",
        "what does",
        "where do",
        "who is the",
        "In which",
        "{topic}: who",
    ),
    "conversation": (
        "Hi, I",
        "Can you help me with",
        "I want to learn about {topic}.",
        "Give me five ideas for",
        "Tell",
        "My friend in {place}",
        "Should I",
        "How can I",
        "I have a problem with {topic}.",
    ),
}

_GERMAN_TEXT = "Die Der Das Ein Eine In Es Wir Ich Sie Er Im Am Bei Nach Mit Auch Für Auf Heute Wenn Als Zwei"
_GERMAN = tuple(_GERMAN_TEXT.split(" "))

_DOCUMENTS: tuple[str, ...] = (
    "Write a long newspaper report about {topic}, with names, places and quotes.",
    "Write a detailed encyclopedia article about {topic}.",
    "Write a news story that happened last week in {place} and has to do with {topic}.",
    "Write a newspaper article of many paragraphs. It begins: {place} -- ",
    "Write the report of a match, a trial or an accident in {place}, in the style of a newspaper.",
    "Write the biography of somebody from {place} who is known for {topic}.",
    "Write several paragraphs on the history of {topic}.",
    "Write a magazine interview about {topic}.",
)

DOCUMENT_TASKS: tuple[str, ...] = (
    "Summarize: {document}",
    "Summarize this text:\n\n{document}",
    "Give a short summary of the following article.\n\n{document}",
    "{document}\n\nSummarize the text above in a few sentences.",
    "Read the passages and answer the question.\n\n{passages}\n\nQuestion: {question}",
    "{passages}\n\nUsing only these texts, answer: {question}",
    "Use these facts to answer the question: {question}\n\n{document}",
    "What are the key points of this article?\n\n{document}",
    "Who and what is named in this text?\n\n{document}",
)
"""What is asked about a document; {question} is one that the target wrote about its topic, {passages} the document
among others."""


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
    return [_filled(rng.choice(_QUESTIONS[kinds[number % len(kinds)]]), deck.draw(), rng) for number in range(count)]


def document_requests(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Per document what the target is asked to write, and how a question about it begins."""
    deck, starts = _Deck(rng, []), ("What", "Who", "Why", "When", "How")
    topics = [deck.draw() for _ in range(count)]
    return [
        (_filled(rng.choice(_DOCUMENTS), topic, rng), f"About {topic}: {starts[number % len(starts)]}")
        for number, topic in enumerate(topics)
    ]


def _filled(template: str, topic: str, rng: random.Random) -> str:
    return template.format(topic=topic, place=rng.choice(_PLACES), german=rng.choice(_GERMAN))
