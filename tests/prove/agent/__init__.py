"""Tests of prove/agent."""
