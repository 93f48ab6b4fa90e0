package main

import (
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type event struct {
	GPU  string `json:"gpu"`
	Type uint64 `json:"type"`
	Data uint64 `json:"data"`
}

// waitEvent waits for a critical XID on any GPU. It says "registered" on stderr once none can be missed any more.
func waitEvent(timeoutMs uint32) (*event, error) {
	set, code := nvml.EventSetCreate()
	if code != nvml.SUCCESS {
		return nil, check("nvmlEventSetCreate", code)
	}
	count, code := nvml.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetCount", code)
	}
	for index := range count {
		device, code := nvml.DeviceGetHandleByIndex(index)
		if code != nvml.SUCCESS {
			return nil, check("nvmlDeviceGetHandleByIndex", code)
		}
		if code := device.RegisterEvents(nvml.EventTypeXidCriticalError, set); code != nvml.SUCCESS {
			return nil, check("nvmlDeviceRegisterEvents", code)
		}
	}
	fmt.Fprintln(os.Stderr, "registered")
	data, code := set.Wait(timeoutMs)
	if code != nvml.SUCCESS {
		return nil, check("nvmlEventSetWait", code)
	}
	uuid, code := data.Device.GetUUID()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetUUID of an event's GPU", code)
	}
	return &event{uuid, data.EventType, data.EventData}, check("nvmlEventSetFree", set.Free())
}
