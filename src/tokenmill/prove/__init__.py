"""The promise of the same text, checked from outside: requests to any OpenAI-compatible server by HTTP alone, each
answered under several circumstances, and the answers compared.
"""
