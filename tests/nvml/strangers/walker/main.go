// Command walker drives whatever libnvidia-ml.so.1 it finds through NVIDIA's Go binding, as Go programs on a node do.
//
// By default it walks: every GPU, its MIG profiles and placements; where MIG mode is on it makes a partition at each
// placement, looks at it as a MIG device and takes it away. With -threads it does the same from many threads at once
// for a number of rounds. With -wait-event it waits for a critical XID. It prints one JSON object. An NVML call that
// fails where it must not ends the program with the call's return code as its exit status and a line on stderr.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// exitFailed is the status where no NVML code tells what went wrong.
const exitFailed = 255

// callError is an NVML call that failed where it must not.
type callError struct {
	call string
	code nvml.Return
}

func (e *callError) Error() string {
	return fmt.Sprintf("%s: %s (%d)", e.call, nvml.ErrorString(e.code), int(e.code))
}

func check(call string, code nvml.Return) error {
	if code == nvml.SUCCESS {
		return nil
	}
	return &callError{call, code}
}

func run(threads, rounds int, waitMs uint) (any, error) {
	if err := check("nvmlInit", nvml.Init()); err != nil {
		return nil, err
	}
	result, err := dispatch(threads, rounds, waitMs)
	return result, errors.Join(err, check("nvmlShutdown", nvml.Shutdown()))
}

func dispatch(threads, rounds int, waitMs uint) (any, error) {
	switch {
	case waitMs > 0:
		return waitEvent(uint32(waitMs))
	case threads > 0:
		return churn(threads, rounds)
	default:
		return walk()
	}
}

func main() {
	threads := flag.Int("threads", 0, "churn from so many threads instead of walking")
	rounds := flag.Int("rounds", 20, "partitions per thread")
	waitMs := flag.Uint("wait-event", 0, "wait so many milliseconds for a critical XID on any GPU instead of walking")
	flag.Parse()
	result, err := run(*threads, *rounds, *waitMs)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "walker:", err)
		var failed *callError
		if errors.As(err, &failed) && failed.code > 0 && failed.code < exitFailed {
			os.Exit(int(failed.code))
		}
		os.Exit(exitFailed)
	}
}
