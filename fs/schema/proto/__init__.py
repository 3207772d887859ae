"""The wire and record schema: .proto files and the code generated from them."""
