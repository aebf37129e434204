"""Tools that no table needs: stylizing one's own pictures and videos, ONNX files, and making small backbones."""
