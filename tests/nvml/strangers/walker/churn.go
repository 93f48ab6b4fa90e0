package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type churned struct {
	Threads int     `json:"threads"`
	Made    int     `json:"made"`
	Full    int     `json:"full"`
	Left    int     `json:"left"`
	Seconds float64 `json:"seconds"`
}

// churn makes and takes away partitions on every GPU with MIG mode on, from `threads` OS threads at once, `rounds` tries
// each. A full GPU is no failure; every other refusal is. Left is how many GPU instances remain of those it made.
func churn(threads, rounds int) (*churned, error) {
	devices, err := listMigGPUs()
	if err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errors.New("no GPU has MIG mode on")
	}
	before, err := countInstances(devices)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	results, failures := make([]churned, threads), make([]error, threads)
	var all sync.WaitGroup
	for number := range threads {
		all.Go(func() {
			runtime.LockOSThread()
			failures[number] = churnThread(devices, number, rounds, &results[number])
		})
	}
	all.Wait()
	total := churned{Threads: threads, Seconds: time.Since(start).Seconds()}
	for _, result := range results {
		total.Made += result.Made
		total.Full += result.Full
	}
	after, err := countInstances(devices)
	total.Left = after - before
	return &total, errors.Join(append(failures, err)...)
}

func churnThread(devices []nvml.Device, number, rounds int, result *churned) error {
	for round := range rounds {
		device := devices[(number+round)%len(devices)]
		made, err := churnOnce(device, number+round)
		if err != nil {
			return fmt.Errorf("thread %d, round %d: %w", number, round, err)
		}
		if made {
			result.Made++
		} else {
			result.Full++
		}
	}
	return nil
}

func churnOnce(device nvml.Device, turn int) (bool, error) {
	uuid, code := device.GetUUID()
	if code != nvml.SUCCESS {
		return false, check("nvmlDeviceGetUUID", code)
	}
	profiles, err := listProfiles(device, true)
	if err != nil {
		return false, err
	}
	p := profiles[turn%len(profiles)]
	instance, code := device.CreateGpuInstance(&p.info)
	if code == nvml.ERROR_INSUFFICIENT_RESOURCES {
		return false, nil
	}
	if code != nvml.SUCCESS {
		return false, check("nvmlDeviceCreateGpuInstance", code)
	}
	_, err = fill(device, uuid, p, instance)
	return true, err
}

func listMigGPUs() ([]nvml.Device, error) {
	count, code := nvml.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, check("nvmlDeviceGetCount", code)
	}
	var devices []nvml.Device
	for index := range count {
		device, code := nvml.DeviceGetHandleByIndex(index)
		if code != nvml.SUCCESS {
			return nil, check("nvmlDeviceGetHandleByIndex", code)
		}
		mode, _, code := device.GetMigMode()
		if code == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

func countInstances(devices []nvml.Device) (int, error) {
	total := 0
	for _, device := range devices {
		profiles, err := listProfiles(device, true)
		if err != nil {
			return 0, err
		}
		for _, p := range profiles {
			instances, code := device.GetGpuInstances(&p.info)
			if code != nvml.SUCCESS {
				return 0, check("nvmlDeviceGetGpuInstances", code)
			}
			total += len(instances)
		}
	}
	return total, nil
}
