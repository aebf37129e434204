"""What serves no table: stylizing one's own pictures and videos, ONNX files, and the making of small backbones."""
