"""Other protocols for the same conversations: OpenAI's responses and Anthropic's messages, as thin layers over chat."""
