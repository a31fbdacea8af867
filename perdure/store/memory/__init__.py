"""Documents, facts, entities, episodes, files and working memory."""
