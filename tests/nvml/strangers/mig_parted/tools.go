//go:build tools

// Package tools names the program that the tests build, so that go.mod and go.sum pin it and all it is made of.
package tools

import _ "github.com/NVIDIA/mig-parted/cmd/nvidia-mig-parted"
