"""The faces of other tools: their names over what outlay computes."""
