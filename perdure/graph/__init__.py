"""The graph: topologies as values, compiled to LangGraph. Pure; knows neither Temporal nor I/O."""
