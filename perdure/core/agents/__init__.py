"""Agents: rules, prompts, models, templates, toolsets, safety, and the plan that a turn pins."""
